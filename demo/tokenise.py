"""A byte-level BPE tokenizer, trained on the corpus itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from tqdm import tqdm

from demo.corpus import TextFile, sample_texts

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(files: list[TextFile], path: Path, *, vocabulary: int, limit_bytes: int) -> None:
    """Train on the first ``limit_bytes`` of ``files``, and save to ``path`` as JSON."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_progress(files, limit_bytes), trainer)
    tokenizer.save(str(path))


def _with_progress(files: list[TextFile], limit_bytes: int) -> Iterator[str]:
    total = min(limit_bytes, sum(file.num_bytes for file in files))
    with tqdm(total=total, desc="tokenizer", unit="B", unit_scale=True, dynamic_ncols=True, disable=None) as bar:
        for text in sample_texts(files, limit_bytes):
            yield text
            bar.update(min(len(text.encode()), total - bar.n))
        bar.set_postfix_str("merging pairs")
