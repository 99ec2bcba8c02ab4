package faults_test

import (
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// mistakes are made in a configuration's fields, with what is secret.
var mistakes = map[string]string{
	`base_url: "http://`:        `base_url: "http://${env:CREDENTIALS}@`,
	`base_url: "`:               `base_url: "${env:TOKEN}`,
	`timeout: 1s`:               `timeout: "${env:TOKEN}"`,
	`"${env:PAGER_SECRET}"`:     `"${env:CREDENTIALS}"`,
	`class: key_idempotent`:     `class: "${env:TOKEN}"`,
	`payload: "{order: `:        `payload: "{order: ${env:CREDENTIALS} `,
	`"/v1/once/{.payload.card}`: `"/v1/once/{${env:CREDENTIALS}}`,
}

// commands are what people type, well and badly, with all that it prints.
func commands(w *world.World) map[string]string {
	said := map[string]string{}
	say := func(p program.Program, lines ...string) {
		for _, line := range lines {
			output, _ := p.Command(strings.Fields(line + " --config " + w.Config)...).CombinedOutput()
			said[line] += string(output)
		}
	}
	say(*w.Program, "status", "intents list", "intents show 4711", "intents retry 1 --reason again", "incidents list", "sagas list",
		"sagas show "+agentName+"-run-13", "providers list", "migrate status", "config validate", "doctor", "run --once")
	for _, wrong := range []string{"postgres://postgres:canary@127.0.0.1:1/postgres?sslmode=disable", "postgres://postgres:canary%zz@127.0.0.1:port/postgres"} {
		away := *w.Program
		away.Env = append(slices.Clone(away.Env), "DATABASE_URL="+wrong)
		say(away, "status", "doctor", "run", "migrate up")
	}
	right := w.Config
	for field, mistake := range mistakes {
		w.Reconfigure(func(config string) string { return strings.Replace(config, field, mistake, 1) })
		say(*w.Program, "config validate", "run")
		w.Config = right
	}
	return said
}
