"""Exactly-once objects in an object store or a folder: what both runtimes write to. See docs/archive.md.

from leasehold.archive import ArchiveSettings, archive_batches
"""

from leasehold.archive.archive import Archive as Archive
from leasehold.archive.archive import ArchiveSession as ArchiveSession
from leasehold.archive.archive import WriteReport as WriteReport
from leasehold.archive.handler import archive_batches as archive_batches
from leasehold.archive.settings import ArchiveSettings as ArchiveSettings
