"""Logits processors and grammars. Each folder could be a distribution of its own."""

if __name__ != "tokloom.plugins.logits":
    raise ImportError("import tokloom.plugins.logits, not logits: the folder is reached through the installed package")
