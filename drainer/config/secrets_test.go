package config

import (
	"strings"
	"testing"
)

func TestExpandReplacesReferences(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"plain":                             "plain",
		"costs $5":                          "costs $5",
		"${env:WAIT}":                       "90s",
		"Bearer ${file:/run/secrets/token}": "Bearer s3cret",
		"${env:WAIT}/${env:WAIT}":           "90s/90s",
		"${file:/run/secrets/two}|":         "line\n|",
		"${file:/run/secrets/crlf}|":        "s3cret|",
		"$${env:WAIT}":                      "${env:WAIT}",
		"a $${ b ${env:WAIT}":               "a ${ b 90s",
		"${env:NESTED}":                     "${env:TOKEN}",
	} {
		got, problems := fakeSecrets().expand(text)
		if got != want || len(problems) > 0 {
			t.Errorf("expand(%q) = %q, %v; want %q", text, got, problems, want)
		}
	}
}

func TestExpandNamesTheReferenceAndItsCure(t *testing.T) {
	t.Parallel()
	for text, wants := range map[string][]string{
		"${env:GONE}":                      {"environment variable GONE is not set; set it"},
		"${env:GONE} ${env:LOST}":          {"GONE is not set", "LOST is not set"},
		"${env:EMPTY}":                     {"environment variable EMPTY is empty"},
		"${env:}":                          {"write ${env:NAME}"},
		"${file:/run/secrets/gone}":        {"/run/secrets/gone cannot be read (file does not exist); mount it"},
		"${file:/run/secrets/empty}":       {"/run/secrets/empty is empty"},
		"${file:relative}":                 {"needs an absolute path"},
		"${vault:x}":                       {"neither ${env:NAME} nor ${file:/path}"},
		"${env:TOKEN":                      {"is not closed"},
		"${env:GONE} and then ${env:TOKEN": {"GONE is not set", "is not closed"},
	} {
		_, problems := fakeSecrets().expand(text)
		if len(problems) != len(wants) {
			t.Errorf("expand(%q) found %v; want %d problems", text, problems, len(wants))
			continue
		}
		for i, want := range wants {
			if !strings.Contains(problems[i].Error(), want) {
				t.Errorf("expand(%q) = %q; want it to say %q", text, problems[i], want)
			}
		}
	}
}
