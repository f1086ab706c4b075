"""First screen of a report, with alerts and advice."""
