"""Self-attention over pages."""

from kvcache.attention.backend import AttentionBackend, AttentionPlan, RowPages, Turn
from kvcache.attention.choice import AttentionFacts, Choice, build, choose
from kvcache.attention.sdpa import SdpaAttention
from kvcache.attention.static_pages import PageLimits, StaticTurn, fill_from_host

__all__ = [
    "AttentionBackend",
    "AttentionFacts",
    "AttentionPlan",
    "Choice",
    "PageLimits",
    "RowPages",
    "SdpaAttention",
    "StaticTurn",
    "Turn",
    "build",
    "choose",
    "fill_from_host",
]
