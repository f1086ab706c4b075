"""The version of the library, which every result carries."""

VERSION = "0.3.0"
