package http

import (
	"net/url"
	slashed "path"
	"strings"
	"testing"
)

// Whatever an agent asks for, a request goes to the configured host, below the
// configured path, and the value arrives as one segment.
func FuzzAValueStaysInItsSegment(f *testing.F) {
	templates := []string{"/charges/{.payload}", "/a/{.payload}/b", "/a/x{.payload}", "/{.payload}.json/c"}
	for _, seed := range []string{
		"ch_1", "", ".", "..", "../..", "..%2f..", `..\..`, "%2e%2e", "a/b", "a?b=c", "a#b", "//evil.example/", "@evil.example", ":80",
		"\r\nHost: evil.example", "\x00", "\xff", "é", "a;b=c", ". .", "...", " ", "/", "\u2215..\u2215", strings.Repeat("../", 100),
	} {
		for template := range templates {
			f.Add(byte(template), seed)
		}
	}
	base, err := url.Parse("https://api.example:8443/v1/root/")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, template byte, value string) {
		text := templates[int(template)%len(templates)]
		parsed, err := parsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		target, err := parsed.below(t.Context(), base, map[string]any{"payload": value})
		if err != nil {
			return
		}
		read, err := url.Parse(target.String())
		if err != nil || read.Scheme != base.Scheme || read.Host != base.Host || read.User != nil || read.RawQuery != "" || read.Fragment != "" {
			t.Fatalf("%q becomes %q, %v", value, target, err)
		}
		before, after, _ := strings.Cut("/v1/root"+text, "{.payload}")
		escaped, begins := strings.CutPrefix(read.EscapedPath(), before)
		escaped, ends := strings.CutSuffix(escaped, after)
		arrived, err := url.PathUnescape(escaped)
		if !begins || !ends || strings.Contains(escaped, "/") || err != nil || arrived != value {
			t.Errorf("%q becomes %q", value, target)
		}
		if seen := slashed.Clean(strings.ReplaceAll(read.Path, `\`, "/")); !strings.HasPrefix(seen+"/", slashed.Dir(before)+"/") {
			t.Errorf("%q climbs to %q", value, seen)
		}
	})
}
