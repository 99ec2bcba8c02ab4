package doctor

import (
	"context"
)

// lookAtDurability: an intent is sent only after its claim is on disk. Where
// commits are forgotten, so is what was sent.
func lookAtDurability(ctx context.Context, x *examination) ([]Finding, error) {
	settings, err := x.settings(ctx, "fsync", "synchronous_commit", "full_page_writes", "synchronous_standby_names")
	if err != nil {
		return nil, err
	}
	var found []Finding
	if s := settings["fsync"]; s.Value == "off" {
		found = append(found, problem(x.cure(s, "on"), "fsync is off: a crash of the machine may lose or damage everything"))
	}
	if s := settings["full_page_writes"]; s.Value == "off" {
		found = append(found, warning(x.cure(s, "on"), "full_page_writes is off: a crash may damage pages, unless the file system writes them whole"))
	}
	switch s := settings["synchronous_commit"]; {
	case s.Value == "off":
		found = append(found, problem(x.cure(s, "on"), "synchronous_commit is off: a crash forgets claims that were sent, and they are sent again"))
	case s.Value == "local" && settings["synchronous_standby_names"].Value != "":
		found = append(found, warning(x.cure(s, "on"), "synchronous_commit is local: a failover forgets claims that were sent, and they are sent again"))
	}
	if len(found) == 0 {
		found = append(found, ok("fsync and full_page_writes are on, synchronous_commit is %s", settings["synchronous_commit"].Value))
	}
	return found, nil
}
