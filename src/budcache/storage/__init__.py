"""Files: JSON in and out, journals that survive a kill, pictures and videos."""
