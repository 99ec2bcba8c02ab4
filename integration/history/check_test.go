package history_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/history"
)

var tools = map[string]history.Tool{
	"shop/order":  {Class: dispatch.KeyIdempotent},
	"shop/cancel": {Class: dispatch.KeyIdempotent},
	"mail/send":   {Class: dispatch.NonIdempotent, Stays: true},
}

// quiet is a run without problems: an order and a mail.
func quiet() history.Accounts {
	return history.Accounts{
		Answers:  map[string]history.Answer{"order": history.Committed, "mail": history.NoAnswer, "nothing": history.Refused},
		Requests: map[string]int{"order": 2, "mail": 1},
		Effects:  []string{"order", "mail"},
		Intents: []history.Intent{
			{ID: 1, Key: "order", Run: "run", Tool: "shop/order", Status: "completed"},
			{ID: 2, Key: "mail", Run: "run", Tool: "mail/send", Status: "completed"},
		},
		Sagas: map[string]string{},
		Transitions: []history.Transition{
			inserted("intent", 1, 0), inserted("queue", 1, 0), inserted("claim", 1, 1), attempted(1, 1, "w", "pending"),
			inserted("queue", 1, 1), inserted("claim", 1, 2), attempted(1, 2, "w", "completed"),
		},
	}
}

func inserted(place string, intent int64, attempt int) history.Transition {
	return history.Transition{Place: place, Change: "INSERT", IntentID: intent, Attempt: attempt}
}

func attempted(intent int64, attempt int, worker, status string) history.Transition {
	return history.Transition{Place: "attempt", Change: "INSERT", IntentID: intent, Attempt: attempt, Worker: worker, Status: status, Settled: status != "pending"}
}

// backAgain is a run of two orders that was compensated.
func backAgain() history.Accounts {
	return history.Accounts{
		Effects: []string{"one", "two", "undo two", "undo one"},
		Intents: []history.Intent{
			{ID: 1, Key: "one", Run: "run", Tool: "shop/order", Status: "compensated"},
			{ID: 2, Key: "two", Run: "run", Tool: "shop/order", Status: "compensated"},
			{ID: 3, Key: "undo two", Run: "run", Tool: "shop/cancel", Status: "completed", Undoes: 2},
			{ID: 4, Key: "undo one", Run: "run", Tool: "shop/cancel", Status: "completed", Undoes: 1},
		},
		Sagas: map[string]string{"run": "compensated"},
	}
}

func TestAccountsThatAgreeShowNoViolation(t *testing.T) {
	t.Parallel()
	for name, accounts := range map[string]history.Accounts{"quiet": quiet(), "back again": backAgain()} {
		if violations := history.Check(accounts, tools); len(violations) > 0 {
			t.Errorf("%s: %v", name, violations)
		}
	}
}

func TestEachInvariantIsSeenToBreak(t *testing.T) {
	t.Parallel()
	append1 := func(transitions ...history.Transition) func(*history.Accounts) {
		return func(a *history.Accounts) { a.Transitions = append(a.Transitions, transitions...) }
	}
	for name, c := range map[string]struct {
		of     func() history.Accounts
		broken func(*history.Accounts)
		wants  history.Invariant
	}{
		"a committed intent is gone":              {quiet, func(a *history.Accounts) { a.Answers["lost"] = history.Committed }, history.Accounted},
		"a refused intent is there":               {quiet, func(a *history.Accounts) { a.Answers["mail"] = history.Refused }, history.Accounted},
		"something else was sent":                 {quiet, func(a *history.Accounts) { a.Requests["stray"] = 1 }, history.Accounted},
		"an intent never ends":                    {quiet, func(a *history.Accounts) { a.Intents[0].Status = "in_progress" }, history.Accounted},
		"an effect is doubled":                    {quiet, func(a *history.Accounts) { a.Effects = append(a.Effects, "order") }, history.OneEffect},
		"a mail is sent again":                    {quiet, func(a *history.Accounts) { a.Requests["mail"] = 2 }, history.OneEffect},
		"completed without an effect":             {quiet, func(a *history.Accounts) { a.Effects = a.Effects[:1] }, history.True},
		"failed with an effect":                   {quiet, func(a *history.Accounts) { a.Intents[0].Status = "failed" }, history.True},
		"settled twice":                           {quiet, append1(attempted(1, 3, "other", "failed")), history.ForGood},
		"queued after its end":                    {quiet, append1(inserted("queue", 1, 2)), history.ForGood},
		"claimed twice under a number":            {quiet, append1(inserted("claim", 1, 2)), history.ForGood},
		"its history was changed":                 {quiet, append1(history.Transition{Place: "attempt", Change: "DELETE", IntentID: 1}), history.ForGood},
		"the intent was changed":                  {quiet, append1(history.Transition{Place: "intent", Change: "UPDATE", IntentID: 1}), history.ForGood},
		"claimed after its end, then an operator": {quiet, append1(inserted("queue", 1, 2), inserted("claim", 1, 3), attempted(1, 4, "operator:ann", "pending")), history.ForGood},
		"undone before its effect":                {backAgain, func(a *history.Accounts) { a.Effects[1], a.Effects[2] = a.Effects[2], a.Effects[1] }, history.BackToNothing},
		"undone in the wrong order":               {backAgain, func(a *history.Accounts) { slices.Reverse(a.Effects[2:]) }, history.BackToNothing},
		"an effect was left":                      {backAgain, func(a *history.Accounts) { a.Effects = a.Effects[:3] }, history.BackToNothing},
		"a step was claimed too late":             {backAgain, append1(history.Transition{Place: "claim", Change: "INSERT", IntentID: 1, Closed: true}), history.BackToNothing},
	} {
		accounts := c.of()
		c.broken(&accounts)
		violations := history.Check(accounts, tools)
		if !slices.ContainsFunc(violations, func(v history.Violation) bool { return v.Invariant == c.wants }) {
			t.Errorf("%s: the violations are %v, want one of %q", name, violations, c.wants)
		}
	}
}

func TestWhatMayFollowTheEndIsNoViolation(t *testing.T) {
	t.Parallel()
	late := attempted(1, 3, "w", "completed")
	late.Late = true
	for name, next := range map[string][]history.Transition{
		"an operator's retry":  {inserted("queue", 1, 2), attempted(1, 3, "operator:ann", "pending"), inserted("claim", 1, 4), attempted(1, 4, "w", "completed")},
		"its undo":             {attempted(1, 3, "saga", "compensated")},
		"a late proof":         {late},
		"its claim is cleared": {{Place: "claim", Change: "DELETE", IntentID: 1, Attempt: 2}},
	} {
		accounts := quiet()
		accounts.Transitions = append(accounts.Transitions, next...)
		if violations := history.Check(accounts, tools); len(violations) > 0 {
			t.Errorf("%s: %v", name, violations)
		}
	}
}

func TestAnotherRequestNeedsTheProvidersOrAnOperatorsWord(t *testing.T) {
	t.Parallel()
	throttled, retried := attempted(2, 1, "w", "pending"), attempted(2, 2, "operator:ann", "pending")
	throttled.Outcome, retried.Outcome = "throttled", "retried_may_duplicate"
	accounts := quiet()
	accounts.Requests["mail"] = 3
	accounts.Transitions = append(accounts.Transitions, throttled, retried, attempted(2, 3, "w", "completed"))
	if violations := history.Check(accounts, tools); len(violations) > 0 {
		t.Errorf("3 requests, one throttled, one asked for: %v", violations)
	}
	accounts.Requests["mail"] = 4
	if violations := history.Check(accounts, tools); len(violations) != 1 || violations[0].Invariant != history.OneEffect {
		t.Errorf("a fourth one: %v", violations)
	}
}

// commits is a database whose COMMIT returns an error, or to which no client can connect.
type commits struct {
	pgx.Tx
	connect, commit error
}

func (c commits) Begin(context.Context) (pgx.Tx, error) { return c, c.connect }

func (c commits) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, nil
}

func (c commits) Commit(context.Context) error   { return c.commit }
func (c commits) Rollback(context.Context) error { return nil }

var (
	unreachable = commits{connect: errors.New("no connection")}
	well        = commits{}
	cut         = commits{commit: io.ErrUnexpectedEOF}
	refused     = commits{commit: &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40001"}}
	ended       = commits{commit: &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}}
)

func TestAnAgentKnowsOnlyWhatItWasTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		databases []commits // the databases that it used, one after the other
		want      history.Answer
	}{
		"committed":                       {[]commits{well}, history.Committed},
		"no connection":                   {[]commits{unreachable}, history.Refused},
		"refused":                         {[]commits{refused}, history.Refused},
		"cut off":                         {[]commits{cut}, history.NoAnswer},
		"the session was ended":           {[]commits{ended}, history.NoAnswer},
		"cut off, then committed":         {[]commits{cut, well}, history.Committed},
		"cut off, then no connection":     {[]commits{cut, unreachable}, history.NoAnswer},
		"no connection, then cut off":     {[]commits{unreachable, cut}, history.NoAnswer},
		"committed, then asked for again": {[]commits{well, cut, refused}, history.Committed},
	} {
		var clients history.Clients
		intent := dispatch.Tuple{AgentRunID: "run", StepID: "step", ToolName: "tool", BusinessScope: "scope"}
		for _, database := range c.databases {
			clients.Enqueue(t.Context(), database, intent, nil)
		}
		if got := clients.Answers()[intent.IdempotencyKey()]; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
