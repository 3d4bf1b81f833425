"""Paged sliding-window K/V cache for causal video models, and the attention that reads it."""

from kvcache.allocator import PageAllocator
from kvcache.attention import AttentionBackend, AttentionPlan, RowPages, SdpaAttention
from kvcache.errors import (
    AuditError,
    GeometryError,
    KVCacheError,
    OwnershipError,
    PoolExhausted,
    WindowError,
)
from kvcache.geometry import KVGeometry
from kvcache.page_table import PageTable, Staging
from kvcache.pool import KVPool
from kvcache.text import TextKVPool, TextRows
from kvcache.window import WindowConfig

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
    "RowPages",
    "SdpaAttention",
    "Staging",
    "TextKVPool",
    "TextRows",
    "WindowConfig",
    "WindowError",
]
