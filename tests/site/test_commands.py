"""cupola site and cupola compensator, as people type them."""

import json

import consortium as made
import pytest
from typer.testing import CliRunner

from cupola.cli import app
from cupola.errors import DataError
from cupola.federation import drive
from cupola.secure import Masked


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@pytest.fixture
def parties(tmp_path):
    """Folders made by `init`, with data, and a roster of their public keys."""
    from cupola.secure.roster import Roster, party_from_json

    trial = made.consortium(tmp_path / "all", made.PLAN, join=False)
    public = []
    for i in range(3):
        folder = trial.site(i)
        settings = (folder / "cupola-site.toml").read_text()
        for name in ("cupola-site.toml", "identity.json"):
            (folder / name).unlink()
        run("site", "init", f"clinic {i}", "-f", folder)
        (folder / "cupola-site.toml").write_text(settings)
        public.append(party_from_json(json.loads((folder / "public.json").read_text())))
    third = trial.compensator
    for path in list(third.iterdir()):
        path.unlink()
    run("compensator", "init", "trustee", "-f", third)
    public.append(party_from_json(json.loads((third / "public.json").read_text())))
    trial.roster = Roster("trial 1", tuple(public[:3]), public[3])
    (trial.base / "roster.json").write_text(trial.roster.to_json())
    yield trial
    trial.close()


def test_a_partys_life(parties):
    plan, roster = parties.base / "plan.toml", parties.base / "roster.json"
    folder = parties.site(0)
    shown = run("site", "preview", plan, "--roster", roster, "-f", folder)
    assert "train: 2 times" in shown
    assert "coordinator with compensator learns every site's own updates" in shown
    for i in range(3):
        run("site", "join", plan, "--roster", roster, "-f", parties.site(i))
    run("compensator", "join", plan, "--roster", roster, "-f", parties.compensator)
    sites, third = parties.open()
    drive(parties.training(), Masked(sites, third, parties.roster))
    told = json.loads(run("site", "ledger", "trial 1", "-f", folder, "--json"))
    assert [line["task"] for line in told["questions"]] == ["train", "train"]
    assert told["spent"]["unprotected"] == {"train": 2}
    (row,) = told["told"]
    assert (row["to"], row["task"], row["answers"]) == ("coordinator, masked", "train", 2)
    assert all(line["protection"] == "masked sum" for line in told["questions"])
    shown = run("site", "ledger", "trial 1", "-f", folder)
    assert "coordinator, masked: " in shown
    assert "(train 2)" in shown
    assert "unprotected" not in shown
    run("site", "ledger", "trial 1", "-f", folder, "--out", folder / "out.csv")
    assert (folder / "out.csv").read_text().count("\n") == 3
    third = run("compensator", "ledger", "trial 1", "-f", parties.compensator)
    assert "4 questions, 4 answered" in third
    assert "coordinator, keys and masks: " in third
    run("site", "revoke", "-f", folder)
    said = run("compensator", "revoke", "--of", folder / "revocation.json", "-f",
               parties.compensator)  # fmt: skip
    assert "'clinic 0' are no longer answered" in said
    assert "withdrawn" in run("site", "withdraw", "trial 1", "-f", parties.site(1))
    run("site", "withdraw", "no such study", "-f", parties.site(1), code=2)


def test_private_keys_stay_where_they_were_made(parties):
    identity = json.loads((parties.site(0) / "identity.json").read_text())
    public = (parties.site(0) / "public.json").read_text()
    assert identity["sign"] not in public
    assert identity["seal"] not in public
    assert (parties.site(0) / "identity.json").stat().st_mode & 0o077 == 0
    run("site", "init", "clinic 0", "-f", parties.site(0), code=2)  # nothing is overwritten


def test_labels_of_sites_are_brought_into_the_plans_order():
    import numpy as np
    import torch

    from cupola.data import Dataset, Source, load
    from cupola.data.loaders.elsewhere import as_agreed

    facts = load("elsewhere", called="a", kind="classification", shape=[2],
                 class_names=["ill", "well", "unknown"])  # fmt: skip
    rows = Dataset(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    own = as_agreed(Source("a", "classification", rows, None, 2, ("unknown", "ill")), facts)
    assert own.train.y.tolist() == [2, 0, 0]
    assert own.classes == 3
    with pytest.raises(DataError, match="'sick' is none of the plan's"):
        as_agreed(Source("a", "classification", rows, None, 2, ("sick", "ill")), facts)
    wide = Dataset(torch.from_numpy(np.zeros((3, 4), np.float32)), rows.y)
    with pytest.raises(DataError, match=r"shape \[4\], in the plan it has \[2\]"):
        as_agreed(Source("a", "classification", wide, None, 2, ("well", "ill")), facts)
