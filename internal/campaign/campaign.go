// Package campaign holds what people do with promotions: creating, starting and
// controlling them, uploading files of targets, and replaying dead letters. It
// also sends webhooks, which report a promotion's progress to other systems.
package campaign
