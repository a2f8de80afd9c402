"""Answers taken apart: reasoning, text and calls of tools, in the formats that chat templates name."""

from tokloom.api.formats.answers import AnswerFormat, ToolUse
from tokloom.api.formats.known import AUTO, NONE, TOOL_FORMATS
from tokloom.api.formats.parser import AnswerParser, Piece
from tokloom.api.formats.reasoning import REASONING_FORMATS

__all__ = ["AUTO", "NONE", "REASONING_FORMATS", "TOOL_FORMATS", "AnswerFormat", "AnswerParser", "Piece", "ToolUse"]
