"""What checkpoints recommend for sampling, and that no token that begins a text comes twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_chat import tiny_chat
from tiny_models import edit_json, tiny_llama

from tokloom import Engine, SamplingParams
from tokloom.plugins.models.decoder.family import DecoderFamily
from tokloom.sdk import CheckpointError, GenerationDefaults, ModelSource
