#!/bin/sh
# Claude Code: a command that its Bash tool runs, and a second question in the same session. $1: a folder of npm.
set -e
claude="$1/node_modules/.bin/claude"
"$claude" --print "Run: echo 3901" --allowedTools "Bash(echo:*)"
"$claude" --print --continue "Thank you."
