"""What the database holds. Times are seconds since 1970; tokens are kept as hashes only."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, object_session, relationship

from cupola.web.kinds import analysis_named

if TYPE_CHECKING:
    from cupola.analysis.protocol import Analysis

COORDINATOR, PARTICIPANT = "coordinator", "participant"
#: Of a study. draft: can be changed; inviting: tokens are out; the others as of its last run.
DRAFT, INVITING, QUEUED, RUNNING = "draft", "inviting", "queued", "running"
STOPPED, FINISHED, FAILED = "stopped", "finished", "failed"
#: Of an invitation.
OPEN, ASKED, JOINED, DECLINED, LEFT = "open", "asked", "joined", "declined", "left"
SITE, COMPENSATOR = "site", "compensator"  # who is invited


class Base(DeclarativeBase):
    pass


class Account(Base):
    """manager: the first coordinator, who sees the whole audit page."""

    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    password: Mapped[str] = mapped_column(String(200))
    role: Mapped[str] = mapped_column(String(16))
    manager: Mapped[bool] = mapped_column(Boolean, default=False)
    created: Mapped[float] = mapped_column(Float, default=time.time)


class Login(Base):
    """A session of a browser."""

    __tablename__ = "login"

    id: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(String(64), unique=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("account.id", ondelete="CASCADE"))
    created: Mapped[float] = mapped_column(Float, default=time.time)
    seen: Mapped[float] = mapped_column(Float, default=time.time)
    account: Mapped[Account] = relationship()


class Attempt(Base):
    """A log-in that failed."""

    __tablename__ = "attempt"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), index=True)
    address: Mapped[str] = mapped_column(String(64), index=True)
    time: Mapped[float] = mapped_column(Float, default=time.time)


class Study(Base):
    """plan: TOML, what the coordinator said. foreseen: what `cupola check` says about it. real:
    sites are machines of their own; roster: JSON, who takes part with which keys, once settled."""

    __tablename__ = "study"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("account.id"))
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[str] = mapped_column(String(200))
    plan: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(12), default=DRAFT)
    minimum: Mapped[int] = mapped_column(default=0)
    created: Mapped[float] = mapped_column(Float, default=time.time)
    foreseen: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    real: Mapped[bool] = mapped_column(Boolean, default=False)
    roster: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[Account] = relationship()
    invitations: Mapped[list[Invitation]] = relationship(order_by="Invitation.id")
    runs: Mapped[list[Run]] = relationship(order_by="Run.number", back_populates="study")

    __table_args__ = (Index("study_by_owner", "owner_id", "created"),)

    @property
    def analysis(self) -> type[Analysis[Any]]:
        """What carries it out; of code that the server does not allow, nothing is imported."""
        return analysis_named(self.kind, self.modules)

    @property
    def modules(self) -> Collection[str]:
        """Those whose code plans may name on this server."""
        session = object_session(self)
        return session.info.get("modules", ()) if session else ()


class Invitation(Base):
    """token: hash, gone once it was used. key: hash of what a site program logs in with after it
    exchanged the token. data: the data set that the site chose. public: JSON, a real party's keys;
    ready: it has pinned the roster."""

    __tablename__ = "invitation"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("study.id", ondelete="CASCADE"))
    site: Mapped[str] = mapped_column(String(64))
    token: Mapped[str | None] = mapped_column(String(64), unique=True)
    key: Mapped[str | None] = mapped_column(String(64), unique=True)
    account_id: Mapped[int | None] = mapped_column(ForeignKey("account.id"), index=True)
    status: Mapped[str] = mapped_column(String(12), default=OPEN)
    data: Mapped[str | None] = mapped_column(String(300))
    changed: Mapped[float] = mapped_column(Float, default=time.time)
    role: Mapped[str] = mapped_column(String(12), default=SITE)
    public: Mapped[str | None] = mapped_column(Text)
    ready: Mapped[bool] = mapped_column(Boolean, default=False)
    study: Mapped[Study] = relationship(back_populates="invitations")

    __table_args__ = (UniqueConstraint("study_id", "site"),)


class Run(Base):
    """One execution of a study. sites: who took part. summary: what the compare page needs."""

    __tablename__ = "run"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("study.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column()
    status: Mapped[str] = mapped_column(String(12), index=True)
    reason: Mapped[str | None] = mapped_column(Text)
    sites: Mapped[list[str]] = mapped_column(JSON, default=list)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created: Mapped[float] = mapped_column(Float, default=time.time)
    ended: Mapped[float | None] = mapped_column(Float)
    study: Mapped[Study] = relationship(back_populates="runs")

    __table_args__ = (UniqueConstraint("study_id", "number"),)


class Event(Base):
    """A line of the audit page."""

    __tablename__ = "event"

    id: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[float] = mapped_column(Float, default=time.time, index=True)
    account_id: Mapped[int | None] = mapped_column(ForeignKey("account.id"), index=True)
    who: Mapped[str] = mapped_column(String(100))
    address: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(40))
    study_id: Mapped[str | None] = mapped_column(String(16), index=True)
    detail: Mapped[str] = mapped_column(String(300), default="")
