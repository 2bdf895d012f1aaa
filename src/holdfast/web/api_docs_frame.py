"""The frame of the docs page."""

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast API</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b2430; --soft: #5a6675; --line: #d9dfe6; --accent: #0b6b57; --paper: #fbfcfd; --code: #eef2f5; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6ebf0; --soft: #a3afbc; --line: #2e3843; --accent: #5fd0b4; --paper: #12171d; --code: #1d252e; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); }}
main {{ max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 6rem; }}
h1 {{ font-size: 2rem; margin: 0 0 .25rem; }} h2 {{ margin: 3rem 0 1rem; font-size: 1.4rem; }}
h3 {{ margin: 0 0 .5rem; font-size: 1.1rem; overflow-wrap: anywhere; }} h3 b, li b {{ color: var(--accent); }}
h4 {{ margin: 1.25rem 0 .25rem; font-size: .85rem; letter-spacing: .04em; text-transform: uppercase; color: var(--soft); }}
section {{ border-top: 1px solid var(--line); padding: 1.75rem 0; }}
code {{ font: .9em ui-monospace, monospace; background: var(--code); padding: .1em .3em; border-radius: .25em; overflow-wrap: anywhere; }}
a {{ color: inherit; text-decoration-color: var(--accent); text-underline-offset: .2em; }}
a:focus-visible {{ outline: 3px solid var(--accent); outline-offset: 2px; }}
ul {{ columns: 20rem; padding: 0; list-style: none; }} li {{ padding: .2rem 0; overflow-wrap: anywhere; }}
.scroll {{ overflow-x: auto; }} section th {{ width: 16rem; }}
table {{ width: 100%; border-collapse: collapse; font-size: .95rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); font-weight: 400; overflow-wrap: anywhere; }}
@media (max-width: 40rem) {{ section tr, section th, section td {{ display: block; width: auto; border: 0; padding: 0; }} section tr {{ padding: .5rem 0; border-bottom: 1px solid var(--line); }} }}
.who, .lead {{ color: var(--soft); }}
</style></head><body><main>
<h1>Holdfast API</h1>
<p class="lead">Version {version}. The same as a machine reads it: <a href="/openapi.json">openapi.json</a>.</p>
<p>JSON in UTF-8. Times are RFC 3339 in UTC, money is integer minor units, ids are opaque. Unknown fields are refused.
Send <code>Authorization: Bearer &lt;token&gt;</code>: a secret key of your staff, or a customer token. What another org owns
does not exist. Errors are <code>application/problem+json</code> with a stable <code>code</code>.</p>
<h2>Operations</h2><ul>{contents}</ul>{sections}
<h2>Refusals</h2><p>Where several apply, the first in this list is told.</p>
<div class="scroll"><table><tr><th>Code</th><th>Status</th><th>Meaning</th><th>Try again?</th></tr>{refusals}</table></div>
</main></body></html>
"""  # noqa: E501
