"""Floods of each call of the service: what is sent, how it is sent at a given rate, and how an honest caller fares."""
