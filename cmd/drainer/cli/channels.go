package cli

import (
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainer/config"
)

// channelsOf builds those that the configuration names under pages.
func channelsOf(loaded *config.Config) ([]pages.Channel, error) {
	var channels []pages.Channel
	for _, page := range loaded.Pages {
		sender, err := senderOf(page)
		if err != nil {
			return nil, fmt.Errorf("pages: %s: %w", page.Name, err)
		}
		channels = append(channels, pages.Channel{Name: page.Name, Repeat: repeatOf(page, loaded.PageRepeat), Sender: sender})
	}
	return channels, nil
}

func senderOf(page config.Page) (pages.Sender, error) {
	switch page.Kind {
	case config.PagerDuty:
		return pages.NewPagerDuty(page.URL, page.Secret), nil
	case config.Slack:
		return pages.NewSlack(page.URL), nil
	case config.Alertmanager:
		return pages.NewAlertmanager(page.URL), nil
	case config.Webhook:
		return pages.NewWebhook(page.URL, page.Secret)
	}
	return nil, fmt.Errorf("there is no such channel as %s", page.Kind)
}

// repeatOf keeps an alert from ending by itself.
func repeatOf(page config.Page, configured time.Duration) time.Duration {
	if page.Kind == config.Alertmanager {
		return pages.AlertmanagerRepeat
	}
	return configured
}

func providerNames(loaded *config.Config) []string {
	names := make([]string, len(loaded.Providers))
	for i, provider := range loaded.Providers {
		names[i] = provider.Name
	}
	return names
}
