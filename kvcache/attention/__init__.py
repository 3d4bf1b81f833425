"""Self-attention over pages."""

from kvcache.attention.backend import AttentionBackend, AttentionPlan, RowPages, Turn
from kvcache.attention.sdpa import SdpaAttention

__all__ = ["AttentionBackend", "AttentionPlan", "RowPages", "SdpaAttention", "Turn"]
