"""The live page: shows in a browser which operations wait, for which marks, why, and until when."""
