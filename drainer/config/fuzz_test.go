package config

import (
	"errors"
	"testing"
)

func FuzzLoadNeverPanics(f *testing.F) {
	for _, seed := range []string{
		"", complete, "version: 1", "- a", "a: &a {b: *a}", "<<: {a: 1}", "? [a]\n: b", "{", "---\n---\n",
		"version: 1\nproviders: {p: {adapter: fake, fake: {extra: [&x {a: 1}, *x, !!set {b}]}}}",
		"database: {url: \"${env:GONE} $${ ${file:/x\"}",
	} {
		f.Add([]byte(seed))
	}
	registry := fakeRegistry(f)
	f.Fuzz(func(t *testing.T, content []byte) {
		config, err := load("drainer.yaml", content, registry, fakeSecrets())
		if (config == nil) == (err == nil) {
			t.Fatalf("neither or both: %v, %v", config, err)
		}
		var invalid *InvalidError
		if err != nil && (!errors.As(err, &invalid) || len(invalid.Problems) == 0) {
			t.Fatalf("not a list of mistakes: %v", err)
		}
	})
}
