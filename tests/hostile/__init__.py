"""Attacks on a real daemon by a caller who means harm, each bounded in count and time, over loopback."""
