"""Word vectors from a file: which word gets which, what is drawn, what is refused."""

from pathlib import Path

import pytest
import torch

from cupola.errors import PlanError
from cupola.nn import build, find_loss
from cupola.privacy.persample import PerSample

WORDS = ("<pad>", "<unk>", "good", "day", "zyzzyva")
TEXT = "the 9 9 9\nday 1 2 3\n. . . 4 5 6\ngood -1 0.5 1e-1\nday 7 7 7\n"


def embedding(path: Path, seed: int = 0, words: tuple[str, ...] = WORDS, **options):
    given = {"vocabulary": len(words), "words": words, "vectors": path, "hidden": 4, **options}
    return build("text_lstm", (6,), 2, seed, **given).embedding.weight


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    path.write_text(TEXT, "utf-8")
    return path


def test_words_get_their_vectors_and_others_a_seeded_draw(glove: Path) -> None:
    table = embedding(glove)
    assert table.shape == (5, 3)
    assert table[0].tolist() == [0, 0, 0]  # pads
    assert table[2].tolist() == pytest.approx([-1, 0.5, 0.1])
    assert table[3].tolist() == [1, 2, 3]  # the first of two
    assert torch.equal(table, embedding(glove))
    other = embedding(glove, seed=1)
    assert torch.equal(table[2:4], other[2:4])
    for drawn in (1, 4):
        assert not torch.equal(table[drawn], other[drawn])
        assert table[drawn].abs().max() > 0


def test_draws_are_as_large_as_the_vectors(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("good " + " ".join(["0.2"] * 300))
    table = embedding(path)
    assert float(table[1].detach().square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)


def test_a_first_line_that_counts_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "fasttext.vec"
    path.write_text("400000 3\nday 1 2 3 \n")
    assert embedding(path)[3].tolist() == [1, 2, 3]


def test_changed_files_are_read_again(glove: Path) -> None:
    embedding(glove)
    glove.write_text("day 4 4\n")
    assert embedding(glove)[3].tolist() == [4, 4]


def test_frozen_or_trained(glove: Path) -> None:
    assert embedding(glove).requires_grad
    assert not embedding(glove, frozen=True).requires_grad
    plain = build("text_lstm", (6,), 2, 0, vocabulary=5, frozen=True, embedding=7)
    assert plain.embedding.weight.shape == (5, 7)
    assert not plain.embedding.weight.requires_grad


def test_padding_after_the_last_word_changes_nothing() -> None:
    module = build("text_lstm", (6,), 2, 0, vocabulary=5, embedding=7, hidden=4)
    short, long = (module(torch.tensor([[3, 4, 2] + [0] * n])) for n in (0, 3))
    assert torch.allclose(short, long, atol=1e-6)
    assert not torch.allclose(short, module(torch.tensor([[3, 4, 2, 0, 1, 0]])))
    assert torch.isfinite(module(torch.zeros(2, 6, dtype=torch.int64))).all()


@pytest.mark.parametrize("frozen", [True, False])
def test_clipped_gradients_are_of_what_is_trained(frozen: bool) -> None:
    """Book-keeping under privacy equals samples alone; padded tweets included."""
    module = build("text_lstm", (6,), 4, 0, vocabulary=9, embedding=5, hidden=4, frozen=frozen)
    module, loss = module.double(), find_loss("cross_entropy")
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 9, (3, 6), generator=generator)
    x[0, 3:] = 0
    y = torch.randint(0, 4, (3,), generator=generator)
    trained = [p for p in module.parameters() if p.requires_grad]
    assert len(trained) == (10 if frozen else 11)
    alone = [
        torch.autograd.grad(loss(module(x[i : i + 1]), y[i : i + 1]).sum(), trained)
        for i in range(3)
    ]
    norms = [torch.cat([g.flatten() for g in each]).norm() for each in alone]
    clip = float(torch.stack(norms).median())
    found = PerSample(module, loss).clipped_sum(x, y, clip).sums
    for part, each in zip(found, zip(*alone), strict=True):
        expected = sum(g * min(1.0, clip / float(n)) for g, n in zip(each, norms))
        torch.testing.assert_close(part, expected)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (TEXT, {"embedding": 300}, "model.embedding = 300, but the vectors in .* have 3 numbers"),
        (TEXT, {"words": (), "vocabulary": 5}, "does not say its words"),
        (TEXT, {"vocabulary": 9}, "5 words, but model.vocabulary = 9"),
        ("Good 1 2\nDAY 3 4\n", {}, "none of the data's 5 words .'good', 'day'"),
        ("", {}, "none of the data's 5 words"),
        ("good\nday\n", {}, "each line must be a word and its numbers"),
        ("the 1 2\nday 1\n", {}, "line 2 is not a word and 2 numbers"),
        ("the 1 2\nday 1 x\n", {}, "line 2 is not a word and 2 numbers"),
        ("the 1 2\nday 1 nan\n", {}, "line 2 is not a word and 2 numbers"),
        (None, {}, "model.vectors: .*No such file"),
    ],
)
def test_refusals(tmp_path: Path, text: str | None, options: dict, says: str) -> None:
    path = tmp_path / "vectors.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanError, match=says):
        embedding(path, **options)
