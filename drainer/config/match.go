package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/agentoutbox/drainer/drainer/incident"
)

func (r *reader) match(at path, block matchBlock) incident.Match {
	if len(block.Kinds) > 0 && len(block.Severities) > 0 {
		r.reject(at.child("severities"), "name kinds or severities; a kind has one severity")
	}
	reject(r, at.child("kinds"), block.Kinds, incident.Kinds())
	reject(r, at.child("severities"), block.Severities, incident.Severities())
	match := incident.Match{Kinds: given(block.Kinds), Providers: given(block.Providers), Tools: given(block.Tools)}
	if len(block.Severities) > 0 {
		match.Kinds = incident.Kinds(block.Severities...)
	}
	return match
}

// given takes an empty list for one that was left out.
func given[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// reject reports each value that is unknown.
func reject[T ~string](r *reader, at path, values, known []T) {
	for i, value := range values {
		if !slices.Contains(known, value) {
			r.reject(at.child(strconv.Itoa(i)), "want one of %s", join(known))
		}
	}
}

// Unrouted names the incidents that no channel gets, each as a kind, or as "KIND of
// PROVIDER, PROVIDER" where channels get it of others. Without channels it is empty.
func (c *Config) Unrouted(kinds ...incident.Kind) []string {
	var unrouted []string
	for _, kind := range kinds {
		if len(c.Pages) == 0 || slices.ContainsFunc(c.Pages, func(page Page) bool {
			return page.gets(kind) && page.Match.Providers == nil && page.Match.Tools == nil
		}) {
			continue
		}
		var missed []string
		for _, provider := range c.Providers {
			if !c.routed(kind, provider.Name) {
				missed = append(missed, provider.Name)
			}
		}
		switch {
		case len(missed) == len(c.Providers):
			unrouted = append(unrouted, string(kind))
		case kind == incident.UnconfiguredProvider:
			unrouted = append(unrouted, string(kind)+" of providers that this file does not name")
		case len(missed) > 0:
			unrouted = append(unrouted, string(kind)+" of "+strings.Join(missed, ", "))
		}
	}
	return unrouted
}

func (p Page) gets(kind incident.Kind) bool { return slices.Contains(p.Match.Chosen(), kind) }

// routed reports whether channels get the kind of all that the provider does. An unknown
// operation is in no list of tools.
func (c *Config) routed(kind incident.Kind, provider string) bool {
	var tools []string
	for _, page := range c.Pages {
		if !page.gets(kind) || page.Match.Providers != nil && !slices.Contains(page.Match.Providers, provider) {
			continue
		}
		if page.Match.Tools == nil {
			return true
		}
		tools = append(tools, page.Match.Tools...)
	}
	for tool := range c.Tools() {
		if name, _, _ := strings.Cut(tool, "/"); name == provider && !slices.Contains(tools, tool) {
			return false
		}
	}
	return kind != incident.UnknownOperation
}

// Unmatched names the providers and tools of a match that this file does not configure.
// Another daemon of the fleet may: else it is a typo, and nothing reaches the channel.
func (c *Config) Unmatched() []string {
	known := map[string]bool{}
	for _, provider := range c.Providers {
		known[provider.Name] = true
	}
	for tool := range c.Tools() {
		known[tool] = true
	}
	var unmatched []string
	for _, page := range c.Pages {
		for _, name := range slices.Concat(page.Match.Providers, page.Match.Tools) {
			if !known[name] {
				unmatched = append(unmatched, page.Name+": "+name)
			}
		}
	}
	return unmatched
}
