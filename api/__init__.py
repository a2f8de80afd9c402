"""The embedding API: engines that take text or token ids."""

if __name__ != "tokloom.api":
    raise ImportError("import tokloom.api, not api: the folder is reached through the installed package")
