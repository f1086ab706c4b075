"""Reports: functions of stored results alone."""

from holdfast.report.files import write

__all__ = ["write"]
