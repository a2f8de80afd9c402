"""The command line. The only part of Tokloom that configures logging, threads and signals of its process."""

from tokloom.serve.cli.main import main

__all__ = ["main"]
