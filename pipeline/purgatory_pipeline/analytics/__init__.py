"""What an archive shows: check, report and what-if replay."""
