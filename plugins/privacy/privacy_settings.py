"""The settings of privacy: the words that are sealed, the place of the keys, the time of grace, and the retention."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, model_validator

from streams.settings.model import Section
from streams.settings.name_lists import split_names


class Privacy(Section):
    """Persons' words are sealed with a key each."""

    key_folder: str = Field(
        "",
        description="folder with the keys of persons, outside the log and its backups; empty: nothing is sealed or "
        "opened, unless command is set",
    )
    command: str = Field(
        "",
        description="instead of key_folder: a command line, followed by get, create or delete and a name; it prints "
        "the key in base64; exit code 3: there is none",
    )
    seal: Literal["off", "named", "all"] = Field(
        "off",
        description="named: what calls and tasks have that name a person; all: the rest, too, with a key for each API "
        "key or user that calls; off: nothing, and what is sealed is read all the same",
    )
    tenants: str = Field("", description="comma separated: those of whom it is sealed; empty: all, and what has none")
    policies: str = Field(
        "",
        description="comma separated names or patterns, as support,acme.*: policies of whom it is sealed; empty: all; "
        "what names no policy, as a thread, is sealed all the same",
    )
    grace_s: float = Field(
        0.0, ge=0, description="how long an erasure may be revoked, seconds; the words are unreadable meanwhile"
    )
    retention_s: float = Field(
        0.0,
        ge=0,
        description="`privacy finish` erases persons without a record for so long, seconds; 0: none, but those whose "
        "own retention is over",
    )
    unknown: Literal["stop", "dead_letter"] = Field(
        "stop",
        description="what a stage does with a record whose key is unknown, and not known to be erased: stop, or write "
        "a dead letter",
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Privacy:
        if self.key_folder and self.command:
            raise ValueError("key_folder and command are both set; keys are in a folder, or a command has them")
        if self.seal != "off" and not self.has_store:
            raise ValueError(f"seal={self.seal} needs a place for keys; set key_folder, or command")
        return self

    @property
    def has_store(self) -> bool:
        """Whether there are keys."""
        return bool(self.key_folder or self.command)

    def seals_for(self, tenant: str | None, policy: str | None) -> bool:
        """Return whether words of this tenant are sealed, said to this policy; None: to one that is not known."""
        tenants, policies = split_names(self.tenants), split_names(self.policies)
        is_of_policy = policy is None or not policies or any(fnmatchcase(policy, pattern) for pattern in policies)
        return self.seal != "off" and (not tenants or tenant in tenants) and is_of_policy
