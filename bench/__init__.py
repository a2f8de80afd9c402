"""Benchmarks."""

if __name__ != "tokloom.bench":
    raise ImportError("import tokloom.bench, not bench: the folder is reached through the installed package")
