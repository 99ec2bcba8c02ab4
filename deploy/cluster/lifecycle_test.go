package cluster_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestAReleaseIsInstalledUpgradedRolledBackAndLeavesNothing(t *testing.T) {
	r := newRelease(t, "lifecycle")
	before := r.objects()
	r.upgrade()
	r.helm("test", "drainer", "--logs")
	r.startLoad()
	r.underLoad(20)

	r.set("image.tag", "next")
	r.upgrade()
	r.assertImage("next")
	r.underLoad(20)

	r.helm("rollback", "drainer", "1", "--wait", "--timeout", "3m")
	r.assertImage("test")
	r.underLoad(20)
	r.audit(0)

	r.helm("uninstall", "drainer", "--wait")
	left := func(want ...string) {
		eventually(t, fmt.Sprintf("%v is left of the release", want), func() error {
			if left := slices.DeleteFunc(r.objects(), func(name string) bool { return slices.Contains(before, name) }); !slices.Equal(left, want) {
				return fmt.Errorf("%v are", left)
			}
			return nil
		})
	}
	left("pod/drainer-doctor") // Helm keeps what `helm test` made
	r.kubectl("delete", "pod,job,configmap", "--selector", "app.kubernetes.io/instance=drainer")
	left()
}

// objects returns the names of all objects in Kubernetes, except for its own records.
func (r *release) objects() []string {
	r.t.Helper()
	var all []string
	for _, namespaced := range []string{"true", "false"} {
		kinds := strings.Fields(r.kubectl("api-resources", "--verbs=list", "--namespaced="+namespaced, "--output=name"))
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { return strings.HasPrefix(kind, "events") || kind == "componentstatuses" })
		all = append(all, strings.Fields(r.kubectl("get", strings.Join(kinds, ","), "--output=name"))...)
	}
	return all
}

// assertImage waits until the pods of other versions have ended.
func (r *release) assertImage(tag string) {
	r.t.Helper()
	eventually(r.t, "all pods run "+tag, func() error {
		for _, name := range strings.Fields(r.kubectl("get", "pods", "--selector", daemons, "--output", "jsonpath={.items[*].spec.containers[0].image}")) {
			if !strings.HasSuffix(name, ":"+tag) {
				return fmt.Errorf("one runs %s", name)
			}
		}
		return nil
	})
}

func TestABadConfigurationIsRefusedBeforeAnythingChanges(t *testing.T) {
	r := newRelease(t, "refused")
	r.upgrade()
	pods, generation := r.pods(), r.kubectl("get", "deployment", "drainer", "--output", "jsonpath={.metadata.generation}")

	r.set("config.providers.pay.tools.act.idempotency.class", "sometimes")
	if err := r.tryUpgrade(); err == nil || !strings.Contains(err.Error(), "pre-upgrade hooks failed") {
		t.Fatalf("the upgrade says %v", err)
	}
	if log := r.kubectl("logs", "job/drainer-validate"); !strings.Contains(log, "providers.pay.tools.act.idempotency.class") {
		t.Errorf("the Job does not name the mistake: %s", log)
	}
	if now := r.kubectl("get", "deployment", "drainer", "--output", "jsonpath={.metadata.generation}"); now != generation || !slices.Equal(r.pods(), pods) {
		t.Errorf("the Deployment changed: generation %s, was %s; pods %v, were %v", now, generation, r.pods(), pods)
	}

	r.set("config.providers.pay.tools.act.idempotency.class", "key_idempotent")
	r.upgrade()
	r.startLoad()
	r.underLoad(20)
	r.audit(0)
}

func TestAFailedMigrationChangesNothingUntilItsCauseIsGone(t *testing.T) {
	r := newRelease(t, "unmigrated")
	for _, statement := range []string{"CREATE SCHEMA outbox", "CREATE TABLE outbox.intent ()"} {
		if _, err := r.database.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.tryUpgrade(); err == nil || !strings.Contains(err.Error(), "pre-install") {
		t.Fatalf("the installation says %v", err)
	}
	if log := r.kubectl("logs", "job/drainer-migrate"); !strings.Contains(log, "outbox") {
		t.Errorf("the Job does not say why: %s", log)
	}
	if deployed := r.kubectl("get", "deployments", "--output=name"); deployed != "" {
		t.Errorf("installed all the same: %s", deployed)
	}

	if _, err := r.database.Exec(t.Context(), "DROP SCHEMA outbox CASCADE"); err != nil {
		t.Fatal(err)
	}
	r.upgrade()

	r.startLoad()
	r.underLoad(20)
	var newest int64
	const forget = `DELETE FROM outbox.goose_db_version WHERE version_id = (SELECT max(version_id) FROM outbox.goose_db_version) RETURNING version_id`
	if err := r.database.QueryRow(t.Context(), forget).Scan(&newest); err != nil {
		t.Fatal(err)
	}
	pods := r.pods()
	r.set("image.tag", "next")
	if err := r.tryUpgrade(); err == nil || !strings.Contains(err.Error(), "pre-upgrade") {
		t.Fatalf("the upgrade says %v", err)
	}
	if now := r.pods(); !slices.Equal(now, pods) {
		t.Errorf("the pods are %v, and were %v", now, pods)
	}
	if _, err := r.database.Exec(t.Context(), `INSERT INTO outbox.goose_db_version (version_id, is_applied) VALUES ($1, true)`, newest); err != nil {
		t.Fatal(err)
	}
	r.upgrade()
	r.assertImage("next")
	r.underLoad(20)
	r.audit(0)
}

func TestANewPasswordIsTakenWithoutARestart(t *testing.T) {
	r := newRelease(t, "rotated")
	r.upgrade()
	r.startLoad()
	r.underLoad(20)
	for _, statement := range []string{
		"ALTER ROLE drainer_rotated PASSWORD 'second'",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'drainer_rotated'",
	} {
		if _, err := r.database.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "no pod is ready", func() error {
		if ready := r.kubectl("get", "deployment", "drainer", "--output", "jsonpath={.status.readyReplicas}"); ready != "" {
			return errors.New(ready + " are")
		}
		return nil
	})

	r.setPassword("second")
	r.kubectl("rollout", "status", "deployment/drainer", "--timeout=150s")
	r.underLoad(50)
	if restarted := r.restarts(); restarted != 0 {
		t.Errorf("%d containers were restarted", restarted)
	}
	r.audit(2 * atOnce)
}

func TestConsoleAndSidecarRunAsPods(t *testing.T) {
	r := newRelease(t, "beside")
	const token = "a-token-of-this-test-alone"
	r.kubectl("create", "secret", "generic", "console", "--from-literal=url="+databaseURL("console", password, r.namespace),
		"--from-literal=tokens=alice operator "+token+"\n")
	r.set("console", object{"enabled": true, "database": object{"secret": "console"}, "tokens": object{"secret": "console"}})
	r.set("sidecars", []object{{
		"name": "tickets", "image": counterpart, "imagePullPolicy": "Never", "args": []string{"sidecar", "/run/drainer/tickets/adapter.sock"},
		"startupProbe": object{"exec": object{"command": []string{"/counterpart", "check", "/run/drainer/tickets/adapter.sock"}}, "periodSeconds": 1},
	}})
	r.set("config.providers.tickets", object{
		"adapter": "sidecar", "sidecar": object{"url": "unix:///run/drainer/tickets/adapter.sock"},
		"tools": object{"close": object{"idempotency": object{"class": "naturally_idempotent"}, "compensation": "none"}},
	})
	r.upgrade()
	if _, err := r.database.Exec(t.Context(), `SELECT outbox.enqueue(current_database(), 'step', 'tickets/close', 'case', '{}')`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sidecar has closed the ticket", func() error {
		var status string
		err := r.database.QueryRow(t.Context(), `SELECT status FROM outbox.status`).Scan(&status)
		if err == nil && status != "completed" {
			err = errors.New(status)
		}
		return err
	})
	address := r.kubectl("get", "service", "drainer-console", "--output", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}, Jar: jar}
	for _, try := range []struct {
		token string
		want  int
	}{{"no-token-of-anybody-here", http.StatusUnauthorized}, {token, http.StatusOK}} {
		reply, err := client.PostForm("http://"+address+"/login", url.Values{"token": {try.token}, "to": {"/intents"}})
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if reply.StatusCode != try.want || strings.Contains(string(page), "tickets/close") != (try.want == http.StatusOK) {
			t.Errorf("the console answers %s with %d, want %d: %s", try.token, reply.StatusCode, try.want, tail(string(page)))
		}
	}
	// docs/alerts.md says that this pod has an operator's login.
	r.kubectl("exec", "deployment/drainer-console", "--", "/drainer", "providers", "pause", "tickets", "--operator", "alice", "--reason", "outage")
	var paused bool
	if err := r.database.QueryRow(t.Context(), `SELECT paused FROM outbox.provider WHERE name = 'tickets'`).Scan(&paused); err != nil || !paused {
		t.Errorf("paused: %t, error %v", paused, err)
	}
}
