"""Reports: functions of stored results alone."""
