"""What is stored of a run of ``holdfast certify``: what is known of each image, and everything about the run."""

from __future__ import annotations

from typing import Literal

from holdfast.core.records import SCHEMA_VERSION, EncoderInfo, ImagesInfo, Number, Record

Status = Literal["CERTIFIED", "FALSIFIED", "UNKNOWN"]


class Certificate(Record):
    """What is known of one image: no change in the ball makes it more similar to a negative, or one does, or neither."""

    id: str
    status: Status
    reason: str
    negative: str
    """The negative it is weakest against."""
    bound: Number
    """The least of the lower bounds of ``W f`` over the ball; by smoothing the certified radius less the ball's; positive:
    certified."""
    attacked: Number
    """The least ``W f`` that attacks found; negative: falsified; nan where none were run."""
    contradictions: int
    """How many of its pairs are certified and falsified at once: 0, or the bounds are wrong."""
    witness: str | None
    replayed: Number | None
    """``W f`` of the witness, read back from its file, by the encoder in the run's precision."""
    pixels: str = ""
    """Hash of the names and pixels that its proof is about; empty without a proof."""


class CertificateRecord(Record):
    """Everything about a run of ``holdfast certify`` but the pixels."""

    schema_version: int = SCHEMA_VERSION
    encoder: EncoderInfo
    images: ImagesInfo
    settings: dict[str, str]
    certificates: tuple[Certificate, ...]
    missing: int = 0
    """How many images have no certificate yet, because a budget was spent."""
    provenance: dict[str, str]
    network: str = ""
    """Hash of the file of the network that proofs are about; empty without proofs."""

    @property
    def subject(self) -> dict[str, str]:
        """What encoder, images and settings the certificates are of, which each proof repeats."""
        return {
            "encoder.name": self.encoder.name,
            "encoder.fingerprint": self.encoder.fingerprint,
            "images.name": self.images.name,
            "images.fingerprint": self.images.fingerprint,
            "images.count": str(self.images.count),
        } | {f"settings.{name}": value for name, value in self.settings.items()}

    @property
    def contradictions(self) -> int:
        """How many pairs are certified and falsified at once."""
        return sum(certificate.contradictions for certificate in self.certificates)

    def counted(self, status: str) -> int:
        """Return how many images have this status."""
        return sum(certificate.status == status for certificate in self.certificates)
