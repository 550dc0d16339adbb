"""Training that goes on when workers die."""

from meshmend.job.job import Job as Job
