"""Parts of the world `day`: its plan, the actors that carry it out, and what their results are compared with."""
