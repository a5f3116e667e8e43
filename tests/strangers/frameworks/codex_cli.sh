#!/bin/sh
# Codex: a command that its shell tool runs, and a second question in the same session. $1: a folder of npm.
set -e
codex="$1/node_modules/.bin/codex"
mkdir -p "$HOME/.codex"
cat > "$HOME/.codex/config.toml" << END
model = "$OPENAI_DEFAULT_MODEL"
model_provider = "streamward"

[model_providers.streamward]
name = "Streamward"
base_url = "$OPENAI_BASE_URL"
wire_api = "responses"
END
"$codex" exec --skip-git-repo-check "Execute: echo 3901"
"$codex" exec --skip-git-repo-check resume --last "Thank you."
