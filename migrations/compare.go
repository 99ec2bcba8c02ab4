package migrations

import (
	"context"
	"slices"
)

// Compare lists what the database lacks of this program's migrations, and what
// a later version has applied to it, of which only set and version are known.
// It takes a few short reads, which the role outbox_drainer may make.
func Compare(ctx context.Context, db Querier) (missing, newer []Migration, err error) {
	known, err := status(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	for set, query := range map[string]string{SetOutbox: outboxVersions, SetRiver: riverVersions} {
		versions, err := appliedVersions(ctx, db, query)
		if err != nil {
			return nil, nil, err
		}
		newer = append(newer, beyond(known, set, versions)...)
	}
	missing = slices.DeleteFunc(slices.Clone(known), func(m Migration) bool { return m.Applied })
	slices.SortFunc(newer, func(a, b Migration) int { return int(a.Version - b.Version) })
	return missing, newer, nil
}

func beyond(known []Migration, set string, versions []int64) (newer []Migration) {
	for _, version := range versions {
		if !slices.ContainsFunc(known, func(m Migration) bool { return m.Set == set && m.Version >= version }) {
			newer = append(newer, Migration{Set: set, Version: version, Applied: true})
		}
	}
	return newer
}
