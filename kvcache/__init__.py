"""Paged sliding-window K/V cache for causal video models, and the attention that reads it."""

from kvcache.allocator import PageAllocator
from kvcache.attention import (
    AttentionBackend,
    AttentionFacts,
    AttentionPlan,
    Choice,
    PageLimits,
    RowPages,
    SdpaAttention,
    StaticTurn,
    Turn,
    build,
    choose,
    fill_from_host,
)
from kvcache.errors import (
    AuditError,
    BackendError,
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
    "AttentionFacts",
    "AttentionPlan",
    "AuditError",
    "BackendError",
    "Choice",
    "GeometryError",
    "KVCacheError",
    "KVGeometry",
    "KVPool",
    "OwnershipError",
    "PageAllocator",
    "PageLimits",
    "PageTable",
    "PoolExhausted",
    "Rotary",
    "Rotation",
    "RowPages",
    "SdpaAttention",
    "Staging",
    "StaticTurn",
    "TextKVPool",
    "TextRows",
    "Turn",
    "WindowConfig",
    "WindowError",
    "build",
    "choose",
    "fill_from_host",
]
