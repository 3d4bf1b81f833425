"""Paged sliding-window K/V cache for causal video models, and the attention that reads it."""

from kvcache.allocator import PageAllocator
from kvcache.attention import AttentionBackend, AttentionPlan, RowPages, SdpaAttention, Turn
from kvcache.errors import (
    AuditError,
    GeometryError,
    KVCacheError,
    OwnershipError,
    PoolExhausted,
    WindowError,
)
from kvcache.geometry import KVGeometry
from kvcache.page_table import PageTable
from kvcache.pool import KVPool
from kvcache.staging import Rotation, Staging
from kvcache.text import TextKVPool, TextRows
from kvcache.window import Rotary, WindowConfig

__all__ = [
    "AttentionBackend",
    "AttentionPlan",
    "AuditError",
    "GeometryError",
    "KVCacheError",
    "KVGeometry",
    "KVPool",
    "OwnershipError",
    "PageAllocator",
    "PageTable",
    "PoolExhausted",
    "Rotary",
    "Rotation",
    "RowPages",
    "SdpaAttention",
    "Staging",
    "TextKVPool",
    "TextRows",
    "Turn",
    "WindowConfig",
    "WindowError",
]
