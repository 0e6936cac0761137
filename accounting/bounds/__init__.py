"""How far one release tells neighbours apart: divergences, profiles and sensitivities."""
