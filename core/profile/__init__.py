"""Profiles: reading, merging and checking. Nothing here imports a plugin or torch."""

from tokloom.core.profile.errors import Problem, ProfileProblems
from tokloom.core.profile.jsonschema import profile_schema
from tokloom.core.profile.load import Profile, load_profile
from tokloom.core.profile.schema import EngineSection, ModelSection, PluginSection, between
from tokloom.core.profile.types import ByteSize, Secret

__all__ = [
    "ByteSize",
    "EngineSection",
    "ModelSection",
    "PluginSection",
    "Problem",
    "Profile",
    "ProfileProblems",
    "Secret",
    "between",
    "load_profile",
    "profile_schema",
]
