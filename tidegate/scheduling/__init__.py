"""The scheduling core: decisions only. Standard library, no I/O, time is an argument."""
