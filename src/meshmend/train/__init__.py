"""Training that goes on when workers die."""

from meshmend.train.job import Job as Job
