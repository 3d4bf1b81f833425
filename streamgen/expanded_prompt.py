"""Prompts as the server gets them, a text or a mix of some, expanded."""

from __future__ import annotations

from dataclasses import replace

from streamgen.expand import PromptExpander
from streamgen.limits import check_prompt
from transport.fields import Prompt


async def expanded(expander: PromptExpander | None, prompt: Prompt) -> Prompt:
    """Return what is shown for a prompt: each of its texts expanded, if there is an expander.

    Raises ExpansionFailed, or InvalidPrompt for what is wrong in itself, which is said first.
    """
    if expander is None:
        return prompt
    if isinstance(prompt, str):
        check_prompt(prompt)
        return await expander.expand(prompt)
    check_prompt([(part.text, part.weight) for part in prompt])
    captions = [await expander.expand(part.text) for part in prompt]
    parts = zip(prompt, captions, strict=True)
    return tuple(replace(part, text=caption) for part, caption in parts)
