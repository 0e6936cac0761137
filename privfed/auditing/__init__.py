"""Audits of claimed guarantees: re-computed ledgers, tested mechanisms and scored canaries."""
