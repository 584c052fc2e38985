"""A small study at the level of its parties: sites that seal seeds, and a compensator."""

from cupola.secure.compensator import Compensator, Request
from cupola.secure.encoding import layout_hash
from cupola.secure.envelope import Statement, seal
from cupola.secure.mask_stream import mask_key
from cupola.secure.roster import simulated_roster

QUESTION, OTHER, TERMS = b"q" * 32, b"o" * 32, b"t" * 32
SMALL = (("x", 32, 10), ("n", 64, 4))


class Study:
    """leaves: numbers of the sites that agreed to be left out."""

    def __init__(self, sites=5, minimum=3, leaves=(), memory=None, seed=1, changes=False):
        made = simulated_roster(
            seed, "study", sites, minimum=minimum, leaves=leaves, changes=changes
        )
        self.roster, self.members, self.third = made
        self.memory = memory
        self.seeds = {}  # envelope -> seed
        self.gone = frozenset()  # sites that the others go on without
        self.compensator = self._open()

    def restart(self):
        """A new process on the same memory."""
        self.compensator.close()
        self.compensator = self._open()

    def _open(self):
        return Compensator(self.third, self.roster, self.memory, lambda: self.gone)

    def statement(self, site, outline=SMALL, step=0, attempt=0, question=QUESTION, terms=TERMS):
        return Statement(
            "study",
            self.roster.digest,
            step,
            attempt,
            question,
            layout_hash(outline),
            self.members[site].name,
            terms,
        )

    def envelope(self, site, *, sealed_to=None, signed_by=None, **facts):
        """What an honest site sends; or, with other keys, what a forger does."""
        seed = bytes([site + 1]) * 16 + len(self.seeds).to_bytes(16, "little")
        signer = self.members[site] if signed_by is None else signed_by
        reader = self.third.public if sealed_to is None else sealed_to
        made = seal(self.statement(site, **facts), seed, signer, reader)
        self.seeds[made] = seed
        return made

    def request(self, sites, outlines=None, envelopes=None, **facts):
        """outlines: site -> outline where it is not SMALL. envelopes: site -> another's."""
        own = [(outlines or {}).get(site, SMALL) for site in sites]
        distinct = tuple(dict.fromkeys(own))
        made = tuple(
            (envelopes or {}).get(site) or self.envelope(site, outline=outline, **facts)
            for site, outline in zip(sites, own)
        )
        return Request(
            "study",
            self.roster.digest,
            facts.get("step", 0),
            facts.get("attempt", 0),
            facts.get("question", QUESTION),
            facts.get("terms", TERMS),
            tuple(sites),
            distinct,
            tuple(distinct.index(outline) for outline in own),
            made,
        )

    def key(self, request, place, array):
        """The mask key of an array at the site in this place of a request."""
        seed = self.seeds[request.envelopes[place]]
        step, attempt = request.step, request.attempt
        return mask_key(seed, study="study", step=step, attempt=attempt, array=array)
