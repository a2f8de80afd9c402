"""Profiles shipped with Tokloom, read as `builtin:NAME`."""

if __name__ != "tokloom.profiles":
    raise ImportError("import tokloom.profiles, not profiles: the folder is reached through the installed package")
