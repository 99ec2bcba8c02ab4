package config

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
)

func (r *reader) pages(at path, blocks []pageBlock) []Page {
	var pages []Page
	named := map[string]bool{}
	for i, block := range blocks {
		at := at.child(strconv.Itoa(i))
		channels := block.channels()
		if len(channels) != 1 {
			r.reject(at, "want one channel: one of %s", join(PageKinds()))
			continue
		}
		page := channels[0]
		r.checkPage(at.child(string(page.Kind)), page)
		page.Name = cmp.Or(block.Name, string(page.Kind))
		if named[page.Name] {
			r.reject(at.child("name"), "there is another channel of this name; give each a name of its own")
		}
		named[page.Name] = true
		pages = append(pages, page)
	}
	return pages
}

// channels are those that the block names, which should be one.
func (b pageBlock) channels() []Page {
	var all []Page
	if c := b.PagerDuty; c != nil {
		all = append(all, Page{Kind: PagerDuty, URL: cmp.Or(c.URL, "https://events.pagerduty.com/v2/enqueue"), Secret: c.RoutingKey})
	}
	if c := b.Slack; c != nil {
		all = append(all, Page{Kind: Slack, URL: c.WebhookURL})
	}
	if c := b.Alertmanager; c != nil {
		all = append(all, Page{Kind: Alertmanager, URL: c.URL})
	}
	if c := b.Webhook; c != nil {
		all = append(all, Page{Kind: Webhook, URL: c.URL, Secret: c.Secret})
	}
	return all
}

func (r *reader) checkPage(at path, page Page) {
	field := "url"
	if page.Kind == Slack {
		field = "webhook_url"
	}
	if !isWebAddress(page.URL) {
		r.reject(at.child(field), "want an address that begins with https:// or http://")
	}
	switch {
	case page.Kind == PagerDuty && page.Secret == "":
		r.reject(at.child("routing_key"), "say which service to page: the integration key of its Events API v2")
	case page.Kind == Webhook && !canSign(page.Secret):
		r.reject(at.child("secret"), "want whsec_ and 24 to 64 random octets in base64")
	}
}

func isWebAddress(text string) bool {
	address, err := url.Parse(text)
	return err == nil && (address.Scheme == "https" || address.Scheme == "http") && address.Host != ""
}

// canSign follows Standard Webhooks: shorter keys can be guessed, and longer
// ones are no better.
func canSign(secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	return err == nil && len(key) >= 24 && len(key) <= 64
}
